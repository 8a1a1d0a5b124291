//! Memory-to-memory transfers with echo latency and TCP_INFO series.
