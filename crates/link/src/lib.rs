//! A path: pure model of rate, delay, loss and queue, and a driver that runs it between namespaces.
