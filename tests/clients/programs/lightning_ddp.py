"""Trains with Lightning and DDPStrategy(process_group_backend="perseus"). Lightning starts the two processes."""

from typing import Any

import lightning as pl
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy


class Model(pl.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)

    def training_step(self, batch: Any, number: int) -> Any:
        loss = (self.layer(batch[0]) - batch[0][:, :2]).square().mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_end(self) -> None:
        total = float(self.layer.weight.detach().double().abs().sum())
        print(f"RESULT {dist.get_backend()} of {dist.get_world_size()} sum {total:.9f}", flush=True)


def main() -> None:
    pl.seed_everything(0)
    data = torch.utils.data.TensorDataset(torch.randn(64, 8))
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        max_epochs=1,
        strategy=DDPStrategy(process_group_backend="perseus"),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=8))


if __name__ == "__main__":
    main()
