//! Captures as files.
//!
//! - [`source`]: files, standard input, gzip and zstd, of any form.
//! - [`roll`]: a capture written as one file or as a ring of files.
//! - `columns` (a feature): a capture as a Parquet table, compact, without the octets themselves.

mod blocks;
#[cfg(feature = "tables")]
pub mod columns;
pub mod roll;
pub mod source;
