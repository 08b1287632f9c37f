"""Detect → crop → classify: the parts of all pictures share the classifier's batches."""

import asyncio

import headway

Picture = list[list[int]]  # columns of pixels; 0 is the background


class Detect(headway.Model[Picture, list[tuple[int, int]]]):
    def predict(self, items: list[Picture]) -> list[list[tuple[int, int]]]:
        filled = [[False, *map(any, item), False] for item in items]
        edges = [[n for n in range(len(each) - 1) if each[n] != each[n + 1]] for each in filled]
        return [list(zip(each[::2], each[1::2], strict=True)) for each in edges]


class Classify(headway.Model[Picture, str]):
    def predict(self, items: list[Picture]) -> list[str]:
        print(f"{len(items)} crops in one batch")
        return ["tall" if len(item) < len(item[0]) else "wide" for item in items]


class Objects(headway.Model[Picture, list[str]]):
    uses = ("detect", "classify")  # the models that it calls

    def predict(self, items: list[Picture]) -> list[list[str]]:
        boxes = self.models["detect"].call_many(items)
        crops = [item[a:b] for item, each in zip(items, boxes, strict=True) for a, b in each]
        kinds = iter(self.models["classify"].call_many(crops))
        return [[next(kinds) for _ in each] for each in boxes]


async def main() -> None:
    app = headway.asgi({"objects": Objects, "detect": Detect, "classify": Classify}, warm_up=False)
    async with app.lifespan():
        print(await app.models["objects"]([[1, 1], [0, 0], [1, 0], [1, 1], [1, 1]]))


asyncio.run(main())
