"""Uploaded images of many clients, through a vision model in batches that fit.

Run it:  uvicorn examples.image_batches:app, then curl -F upload=@photo.jpg localhost:8000/classify
"""

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import numpy
import torch
from fastapi import Depends, FastAPI, File, HTTPException
from PIL import Image
from torch import Tensor, nn

from gpu_admission import Admission, GPUAdmission
from gpu_admission.serving import Batcher

IMAGE_BYTES = 2 * 2**20  # what the model's layers hold for one image of 64 x 64

device = "cuda" if torch.cuda.is_available() else "cpu"
seeing = [nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.Conv2d(64, 256, 3, 2), nn.AdaptiveAvgPool2d(6)]
naming = [nn.Linear(9216, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)]
model = nn.Sequential(*seeing, nn.Flatten(), *naming).to(device).eval()  # an AlexNet that has learned nothing


def classify_all(images: list[Tensor]) -> list[int]:
    """The class of each image: one run of the model, in a worker thread."""
    with torch.inference_mode():
        return [int(best) for best in model(torch.stack(images).to(device)).argmax(1)]


admission = Admission(capacity="256MiB", estimator=IMAGE_BYTES, max_waiting=1000)
classify = Batcher(classify_all, cost=IMAGE_BYTES, max_items=64, max_wait=0.1, admission=admission)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with classify:
        yield


app = FastAPI(lifespan=lifespan)
app.add_middleware(GPUAdmission, admission=admission)


def decode(upload: Annotated[bytes, File()]) -> Tensor:
    """The upload as 3 x 64 x 64 numbers from 0 to 1."""
    try:
        image = Image.open(io.BytesIO(upload)).convert("RGB").resize((64, 64))
    except (OSError, Image.DecompressionBombError) as error:
        raise HTTPException(400, "the upload is not an image that can be read") from error
    return torch.from_numpy(numpy.array(image)).permute(2, 0, 1) / 255


@app.post("/classify")
async def classify_one(image: Annotated[Tensor, Depends(decode)]) -> dict[str, int]:
    return {"class": await classify(image)}
