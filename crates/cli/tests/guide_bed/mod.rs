//! Pages of the guide as programs: parsed, carried out, compared.

pub mod page;
pub mod session;
pub mod shape;
