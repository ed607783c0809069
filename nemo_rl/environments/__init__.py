"""What scores a rollout. This module stays empty: every grader process imports it."""
