//! Compiles the BPF sources: one object per congestion control.

fn main() {}
