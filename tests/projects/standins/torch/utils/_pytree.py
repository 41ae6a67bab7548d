def tree_leaves(value):
    return [value]
