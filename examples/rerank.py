"""Reranking: which documents answer the question best?

Needs `pip install 'headway[minilm]'`. Over HTTP: `headway serve minilm-rerank`.
"""

import asyncio

import headway
from headway.models.ready.rerank import MiniLMReranker

QUESTION = "What is the capital of France?"
DOCUMENTS = [
    "Bananas are rich in potassium.",
    "Lyon is the third-largest city of France.",
    "Paris is the capital of France.",
]


async def main() -> None:
    async with headway.Batcher(MiniLMReranker()) as batcher:
        pairs = [{"query": QUESTION, "document": document} for document in DOCUMENTS]
        scores = await batcher.many(pairs)  # in one batch, the question is embedded once
    for score, document in sorted(zip(scores, DOCUMENTS, strict=True), reverse=True):
        print(f"{score:5.2f}  {document}")


asyncio.run(main())
