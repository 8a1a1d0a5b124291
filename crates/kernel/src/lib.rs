//! The only crate that speaks BPF: support probe and congestion-control loader.
