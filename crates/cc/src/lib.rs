//! The congestion-control algorithms of cc/, compiled natively behind a safe controller.
