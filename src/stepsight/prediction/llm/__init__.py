"""Language-model training steps: walked, with intervals, figures and answers to questions."""
