//! A split-TCP relay with one congestion control per leg.
