"""Where one pass of the demo keeps its files: one folder with fixed names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
ORDERS_CSV: Final = HERE / "orders.csv"
REFUSALS_CSV: Final = HERE / "refusals.csv"
ORDER_YAML: Final = HERE / "order.yaml"
SUMMARY_YAML: Final = HERE / "summary.yaml"

# The variables that tell the engine's process where the services and the invoice folder are. They
# are no input of the orders, because an order stays the same when a server moves.
PAYMENT_URL: Final = "ORDERS_PAYMENT_URL"
MAIL_URL: Final = "ORDERS_MAIL_URL"
INVOICES: Final = "ORDERS_INVOICES"


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of one pass."""

    folder: Path

    @property
    def orders(self) -> Path:
        """The orders of this pass: `orders.csv`, or its beginning."""
        return self.folder / "orders.csv"

    @property
    def database(self) -> Path:
        """The engine's store."""
        return self.folder / "orders.db"

    @property
    def charges(self) -> Path:
        """The payment server's ledger."""
        return self.folder / "charges.jsonl"

    @property
    def messages(self) -> Path:
        """The mail server's ledger."""
        return self.folder / "messages.jsonl"

    @property
    def invoices(self) -> Path:
        """The folder of invoice files."""
        return self.folder / "invoices"

    @property
    def answers(self) -> Path:
        """One JSON line for each doubt that was answered."""
        return self.folder / "answers.jsonl"

    @property
    def ended(self) -> Path:
        """What the engine says became of every run; written when all of them ended."""
        return self.folder / "ended.json"

    @property
    def log(self) -> Path:
        """What the engine's processes printed."""
        return self.folder / "engine.log"
