"""On the real model, CrowS-Pairs by sum is what lm-evaluation-harness's own log-likelihoods give, pair by pair."""

import os
from pathlib import Path

import numpy as np
import pytest
from tiny import quiet_run

from evenhand.data.crows_pairs import CrowSPairs as Pairs
from evenhand.lm import LM
from evenhand.metrics.crows_pairs import CrowSPairs

SAMPLE = 8


def test_sums_are_the_harness_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface = pytest.importorskip("lm_eval.models.huggingface", reason="needs the extra: evenhand[harness]")
    from lm_eval.api.instance import Instance

    root = Path(os.environ.get("EVENHAND_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not (root / "crows_pairs").exists():
        pytest.skip("CrowS-Pairs: needs EVENHAND_DATA")
    monkeypatch.setenv("EVENHAND_DATA", str(root))
    lm = LM.load("smollm2")
    rows = Pairs().take("test", SAMPLE)
    table = CrowSPairs(scorer="sum").score(lm, rows, quiet_run(tmp_path))
    peer = huggingface.HFLM(pretrained=lm.model, tokenizer=lm.tokenizer, batch_size=4)
    sentences = [text for row in rows for text in (row.more, row.less)]
    requests = [Instance("loglikelihood", {}, ("", text), number) for number, text in enumerate(sentences)]
    theirs = np.array([value for value, _ in peer.loglikelihood(requests, disable_tqdm=True)]).reshape(-1, 2)
    np.testing.assert_allclose(table[["more", "less"]], theirs, atol=5e-3)
    assert table["hit"].tolist() == (theirs[:, 0] > theirs[:, 1]).astype(float).tolist()
