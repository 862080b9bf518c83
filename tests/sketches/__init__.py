"""The four other methods of the paper as short programs over `rtpo.verbs.Harness`: the test of the verbs."""
