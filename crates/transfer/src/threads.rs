//! Threads that may be refused: a host has only so many.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    thread::{Builder, Scope, ScopedJoinHandle},
};

/// Starts a thread; `std`'s own way panics where the host has none left.
pub(crate) fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    Builder::new().spawn_scoped(scope, work)
}

/// What a thread came to; else why nothing came of it.
pub(crate) fn joined<T>(thread: io::Result<ScopedJoinHandle<'_, T>>) -> Result<T, String> {
    let thread = thread.map_err(|error| format!("this host has no thread for it: {error}"))?;
    thread.join().map_err(|_| "its thread failed".to_owned())
}

/// Starts a thread that works on `value`, or gives it back with the reason why there is none.
pub(crate) fn spawn_with<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    value: T,
    work: impl FnOnce(T) + Send + 'scope,
) -> Result<(), (T, io::Error)> {
    // A closure that gets no thread is lost with all it holds: so it holds a share only.
    let place = Arc::new(Mutex::new(Some(value)));
    let taken = Arc::clone(&place);
    match spawn(scope, move || take(&taken).map(work)) {
        Ok(_) => Ok(()),
        Err(error) => take(&place).map_or(Ok(()), |value| Err((value, error))),
    }
}

fn take<T>(place: &Mutex<Option<T>>) -> Option<T> {
    place.lock().unwrap_or_else(PoisonError::into_inner).take()
}
