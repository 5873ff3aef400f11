"""The models as torch modules: the same operators, in the same order, as the rank programs list."""
