"""pydantic models in and out, nested, with constraints and defaults."""

import headway
from pydantic import BaseModel, Field


class Line(BaseModel):
    name: str
    price: float = Field(gt=0)
    quantity: int = 1


class Order(BaseModel):
    lines: list[Line]
    discount: float = Field(default=0.0, ge=0, lt=1)
    note: str | None = None


class Total(BaseModel):
    total: float
    lines: int


@headway.single
def total(order: Order) -> Total:
    amount = sum(line.price * line.quantity for line in order.lines)
    return Total(total=round(amount * (1 - order.discount), 2), lines=len(order.lines))
