"""Ask one question of `chat` and of its adapters, all in one batch: run train.py first.

python examples/adapters/ask.py adapters "What is the capital of Spain?"
"""

import argparse
import asyncio
from pathlib import Path

import headway


async def main(adapters: dict[str, Path], question: str) -> None:
    async with headway.Generator("chat", dtype="float32", adapters=adapters) as generator:
        messages = [{"role": "user", "content": question}]
        names = ["", *sorted(adapters)]
        answers = await asyncio.gather(
            *(
                generator.generate(messages, adapter=name, max_tokens=40, temperature=0)
                for name in names
            )
        )
        for name, answer in zip(names, answers, strict=True):
            print(f"{name or 'chat'}: {answer.text}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("question")
    asked = parser.parse_args()
    folders = {each.name: each for each in asked.folder.iterdir() if each.is_dir()}
    asyncio.run(main(folders, asked.question))
