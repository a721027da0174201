"""The Blackwell family (sm_100a, sm_100f, sm_103a): derived sizes, choices and maps, not yet plans."""
