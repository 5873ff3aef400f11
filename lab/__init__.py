"""The laboratory: readers of published files, fits of what ships, scores. Not installed with stepsight."""
