# ruff: noqa: E501
"""A page of prose in each of ten languages, written for these tests, and some code."""

from __future__ import annotations

from typing import Final

PROSE: Final = {
    "english": (
        "When the ferry left the harbour, the wind had already turned, and the people on the deck pulled "
        "their coats a little tighter. An old man with a red scarf explained to anybody who would listen "
        "that the bridge, once finished, would make the crossing pointless; nobody answered him, because "
        "everyone knew it and everyone liked the boat. Forty minutes later the lights of the other shore "
        "came out of the fog, one after the other, like a sentence that finds its end. "
    ),
    "chinese": (
        "渡船离开港口的时候,风向已经变了,甲板上的人把大衣裹得更紧一些。一位戴着红围巾的老人向每个愿意听的人解释说,"
        "等大桥建成以后,坐船过河就没有意义了;没有人回答他,因为大家都知道这件事,大家也都喜欢这条船。"
        "四十分钟以后,对岸的灯光一盏接一盏地从雾里出现,好像一个句子终于找到了结尾。孩子们跑到栏杆旁边,"
        "数着灯,数到第十七盏的时候,船靠岸了,绳子落在石头上,发出沉闷的声音。"
    ),
    "japanese": (
        "渡し船が港を離れたとき、風向きはもう変わっていて、甲板の人々はコートの襟を少しきつく合わせた。"
        "赤いマフラーをした老人が、橋が完成すればこの船に乗る意味はなくなるのだと、聞いてくれる人みんなに説明していた。"
        "誰も答えなかったのは、誰もがそれを知っていて、誰もがこの船を好きだったからだ。四十分後、向こう岸の明かりが"
        "霧の中からひとつずつ現れた。まるで、終わりを見つけた文章のように。"
    ),
    "korean": (
        "나룻배가 항구를 떠날 때 바람은 이미 방향을 바꾸었고, 갑판에 있던 사람들은 외투를 조금 더 단단히 여몄다. "
        "빨간 목도리를 두른 노인은 다리가 완성되면 배를 타고 건너는 일이 아무 의미가 없어질 것이라고 들어 주는 모든 "
        "사람에게 설명했다. 아무도 대답하지 않았는데, 모두가 그 사실을 알고 있었고 모두가 그 배를 좋아했기 때문이다. "
        "사십 분 뒤에 건너편 기슭의 불빛이 안개 속에서 하나씩 나타났다. "
    ),
    "portuguese": (
        "Quando a balsa deixou o porto, o vento já tinha mudado, e as pessoas no convés apertaram um pouco mais "
        "os casacos. Um senhor de cachecol vermelho explicava a quem quisesse ouvir que a ponte, depois de pronta, "
        "tornaria a travessia inútil; ninguém respondeu, porque todos sabiam disso e todos gostavam do barco. "
        "Quarenta minutos depois, as luzes da outra margem saíram da neblina, uma após a outra. "
    ),
    "german": (
        "Als die Fähre den Hafen verließ, hatte der Wind schon gedreht, und die Leute an Deck zogen ihre Mäntel "
        "etwas fester zusammen. Ein alter Mann mit rotem Schal erklärte jedem, der zuhören wollte, dass die Brücke "
        "nach ihrer Fertigstellung die Überfahrt überflüssig machen würde; niemand antwortete, denn alle wussten es, "
        "und alle mochten das Schiff. Vierzig Minuten später kamen die Lichter des anderen Ufers aus dem Nebel. "
    ),
    "french": (
        "Quand le bac quitta le port, le vent avait déjà tourné, et les gens sur le pont resserrèrent un peu leur "
        "manteau. Un vieil homme à l'écharpe rouge expliquait à qui voulait l'entendre que le pont, une fois achevé, "
        "rendrait la traversée inutile ; personne ne lui répondit, car tout le monde le savait et tout le monde "
        "aimait le bateau. Quarante minutes plus tard, les lumières de l'autre rive sortirent du brouillard. "
    ),
    "russian": (
        "Когда паром отошёл от пристани, ветер уже переменился, и люди на палубе плотнее запахнули пальто. Старик в "
        "красном шарфе объяснял каждому, кто соглашался слушать, что мост, когда его достроят, сделает переправу "
        "ненужной; никто ему не ответил, потому что все это знали и все любили этот паром. Через сорок минут из "
        "тумана один за другим появились огни другого берега. "
    ),
    "arabic": (
        "عندما غادرت العبّارة الميناء كانت الريح قد غيّرت اتجاهها، فشدّ الناس على السطح معاطفهم قليلاً. كان رجل عجوز "
        "يضع وشاحاً أحمر يشرح لكل من أراد أن يسمع أن الجسر حين يكتمل سيجعل العبور بلا معنى؛ لم يجبه أحد، لأن الجميع "
        "كانوا يعرفون ذلك ولأن الجميع كانوا يحبون القارب. بعد أربعين دقيقة ظهرت أضواء الضفة الأخرى من الضباب. "
    ),
    "hindi": (
        "जब नाव बंदरगाह से चली तब हवा का रुख बदल चुका था और डेक पर खड़े लोगों ने अपने कोट थोड़े और कस लिए। लाल मफ़लर वाला एक "
        "बूढ़ा आदमी हर सुनने वाले को समझा रहा था कि पुल बन जाने के बाद नाव से पार जाने का कोई मतलब नहीं रहेगा; किसी ने जवाब नहीं "
        "दिया, क्योंकि सब यह जानते थे और सबको नाव पसंद थी। चालीस मिनट बाद दूसरे किनारे की बत्तियाँ कोहरे से निकलने लगीं। "
    ),
}
"""Some 300 to 450 characters of each."""

CODE: Final = {
    "go": """
// Drain reads until the channel is closed, or the context ends.
func Drain[T any](ctx context.Context, in <-chan T, each func(T) error) (n int, err error) {
	defer func() { metrics.Observe("drained", float64(n)) }()
	for {
		select {
		case <-ctx.Done():
			return n, fmt.Errorf("drain: %w", ctx.Err())
		case item, open := <-in:
			if !open {
				return n, nil
			}
			if err = each(item); err != nil {
				return n, err
			}
			n++
		}
	}
}
""",
    "javascript": """
export const debounce = (fn, wait = 250, { leading = false } = {}) => {
  let timer = null, pending;
  return function debounced(...args) {
    if (leading && timer === null) fn.apply(this, args); else pending = [this, args];
    clearTimeout(timer);
    timer = setTimeout(() => { timer = null; if (pending) { fn.apply(...pending); pending = undefined; } }, wait);
  };
};
""",
    "json": """
{"id": 4711, "name": "Ferry \\"Marie\\"", "position": {"lat": 54.3233, "lon": 10.1228}, "crew": [{"role": "captain",
"since": "2019-04-01T06:30:00Z"}, {"role": "engineer", "since": null}], "active": true, "tags": ["blue", "old"]}
""",
    "sql": """
SELECT r.name, COUNT(*) AS trips, SUM(t.fare_cents) / 100.0 AS income
FROM routes AS r LEFT JOIN trips AS t ON t.route_id = r.id AND t.started_at >= DATE '2024-01-01'
GROUP BY r.name HAVING COUNT(*) > 10 ORDER BY income DESC NULLS LAST;
""",
}
