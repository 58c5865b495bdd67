"""A password in ``shared=`` stays where it is: no message, log line, repr or exception shows it."""

from __future__ import annotations

import contextlib
import io
import logging
import traceback
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpu_admission import Admission
from gpu_admission.cli import main
from gpu_admission.shared.opening import open_log
from gpu_admission.shared.redisaddress import parse, shown

MARK = "kq9Zx"
"""Stands before and after what is odd in a password, so that a part of it is seen too."""

pytest.importorskip("redis")

WITHOUT_HOST = "redis://:{}/0?name=gpu0"
ADDRESSES = (
    "redis://:{}@localhost:6399/0 (gpu0)",
    "redis://:{}@localhost:6399/0?name=gpu0",
    "rediss://me:{}@localhost/gpu0",
    "redis://{}@localhost/gpu0",
    WITHOUT_HOST,
    "redis://localhost/0?name=gpu0&password={}",
    "redis://localhost/0?password={}&name=gpu0",
    "unix://me:{}@/run/redis.sock?name=gpu0",
    "redis+sentinel://:{}@one:26380,two/mymaster/0?name=gpu0",
    "redis+sentinel://:{}@one,two?name=gpu0",
    "http://:{}@localhost/gpu0",
    "REDIS://me:{}@localhost/gpu0",
    "redis:/:{}@localhost/gpu0",
    "//:{}@localhost/gpu0",
    "me:{}@localhost",
)

passwords = st.text(max_size=12).map(lambda odd: f"{MARK}{odd}{MARK}")
tearing = st.text("/?#@:[]%&=;1a\\ \n", max_size=12).map(lambda odd: f"{MARK}{odd}{MARK}")
numbers = st.text("/?#@:[]&=0123456789", max_size=8).map(lambda odd: f"123/{odd}{MARK}")


def everything_in(error: BaseException | None) -> Iterator[str]:
    """What is said anywhere in a chain of exceptions, suppressed or not."""
    while error is not None:
        yield str(error)
        yield repr(error)
        yield "".join(traceback.format_exception_only(error))
        error = error.__cause__ or error.__context__


@given(passwords | tearing | numbers, st.sampled_from(ADDRESSES))
@example(f"{MARK}/p@ss{MARK}", ADDRESSES[0])
@example(f"1234?name=a&{MARK}=", ADDRESSES[1])
@example(f"a&{MARK}=1", ADDRESSES[5])
@example(f"123/:?{MARK}", WITHOUT_HOST)
def test_no_message_holds_a_password(password: str, address: str) -> None:
    if address == WITHOUT_HOST:
        password = password.replace("@", "")  # what stands behind it would be the host
    shared = address.format(password)
    try:
        log = open_log(shared)
    except (ValueError, TypeError) as error:
        said = "\n".join(everything_in(error))
    else:
        said = f"{log.where}\n{log!r}"
        if "://" in shared:
            said += repr(parse(shared))
    assert MARK not in said


@given(passwords | tearing, st.sampled_from(ADDRESSES[1:5]))
def test_a_password_that_is_percent_encoded_is_the_one_that_is_sent(password: str, address: str) -> None:
    if not address.count("@"):
        return
    read = parse(address.format(quote(password, safe="")))
    sent = read.client().connection_pool.connection_kwargs
    assert password in (sent.get("password"), sent.get("username"))
    assert read.hide(f"wrong: {password}, {quote(password, safe='')}") == "wrong: ***, ***" or not sent.get(
        "password"
    )


def test_who_did_not_percent_encode_it_is_told_how() -> None:
    with pytest.raises(ValueError, match=r"redis://\*\*\*.*percent-encode the password \(/ is %2F"):
        parse("redis://:s3cr3t/p@ss@localhost:6399/0?name=gpu0")


def test_an_option_that_the_library_lacks_is_named_unless_it_may_be_of_a_password() -> None:
    with pytest.raises(ValueError, match=r"sokket_timeout.*behind the"):
        open_log("redis://localhost/0?name=gpu0&sokket_timeout=1")
    with pytest.raises(ValueError, match="part of a password that was torn"):
        open_log("redis://localhost/0?name=gpu0&password=a&b=1")


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("odd", ["", "/p@", "#", "?"])
def test_no_repr_log_line_or_start_line_of_an_admission_holds_it(
    address: str, odd: str, caplog: pytest.LogCaptureFixture
) -> None:
    shared = address.format(f"{MARK}{odd}{MARK}")
    caplog.set_level(logging.DEBUG)
    try:
        admission = Admission(capacity=100, estimator=1, shared=shared)
        said = f"{admission!r} {admission.settings!r} {admission.snapshot()} {admission.locked.where}"
    except ValueError as error:
        said = "\n".join(everything_in(error))
    assert MARK not in said
    assert MARK not in caplog.text


@pytest.mark.parametrize("odd", ["", "/p@", "#", "?"])
@pytest.mark.parametrize("command", [["budget", "show"], ["hold", "1GiB"]])
def test_no_command_prints_it(odd: str, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    shared = f"redis://me:{MARK}{odd}{MARK}@127.0.0.1:1/0?name=gpu0"
    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.suppress(SystemExit):
        assert main([*command, shared, *(["--", "true"] if command[0] == "hold" else [])])
    assert MARK not in err.getvalue() + capsys.readouterr().out


def test_a_path_that_is_no_address_is_still_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shared='dev/shm/gpu0' must be an absolute path"):
        open_log("dev/shm/gpu0")
    assert open_log(tmp_path / "@gpu:0").where == str(tmp_path / "@gpu:0")


def test_of_what_is_no_address_nothing_is_shown() -> None:
    assert shown("1 //gpu:s3cr3t@host") == "***"
