"""Our own models, as pyproject.toml names them in the group `headway.models`. It loads nothing."""

from headway.models.sources.entry import Entry

MINILM = Entry(
    "minilm",
    "text embedding",
    "all-MiniLM-L6-v2: a text becomes 384 numbers; similar texts, similar numbers",
    model="headway.models.ready.embed:MiniLM",
    packaged="headway.models.ready.embed:MINILM_WEIGHTS",
    install="headway[minilm]",
)
MINILM_RERANK = Entry(
    "minilm-rerank",
    "reranking",
    "the same model: how well a document fits a query, as the cosine of their embeddings",
    model="headway.models.ready.rerank:MiniLMReranker",
    packaged="headway.models.ready.embed:MINILM_WEIGHTS",
    install="headway[minilm]",
)
CLONEGUARD = Entry(
    "cloneguard",
    "text classification",
    "a MiniLM that tells prompt injections from safe texts",
    model="headway.models.ready.classify:CloneGuard",
    packaged="headway.models.ready.classify:CLONEGUARD_WEIGHTS",
    install="headway[cloneguard]",
)
RAPIDOCR = Entry(
    "rapidocr",
    "reading images",
    "PP-OCR: the lines of text in an image, with their places",
    model="headway.models.ready.ocr:RapidOCR",
    packaged="headway.models.ready.ocr:RAPIDOCR_WEIGHTS",
    install="headway[ocr]",
)
MOONSHINE = Entry(
    "moonshine",
    "speech recognition",
    "Moonshine base: a clip of English speech becomes its text",
    model="headway.models.ready.speech.moonshine:Moonshine",
    packaged="headway.models.ready.speech.moonshine:MOONSHINE_WEIGHTS",
    install="headway[moonshine]",
)
