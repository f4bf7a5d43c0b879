"""Judge trained models: metrics per site, and paired tests, from numbers that may leave a site."""

from unseen.judging.judge_sites import judge
from unseen.judging.judgement import Judgement, load_judgement

__all__ = ["Judgement", "judge", "load_judgement"]
