//! Records that the built BPF objects and this crate agree on, held against the types that the objects themselves carry
//! (BTF).

use libbpf_rs::btf::{
    Btf, HasSize as _,
    types::{MemberAttr, Struct},
};

/// A record as an object carries it.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    pub bytes: usize,
    /// Each field and the octets before it, in the order of the declaration.
    pub fields: Vec<(String, usize)>,
}

impl Layout {
    /// The layout of `struct name` in a built object, read from its BTF.
    ///
    /// # Panics
    /// When the object carries no such type.
    pub fn of(object: &[u8], name: &str) -> Layout {
        let btf = Btf::from_raw(name, object).unwrap().expect("objects carry their types");
        let record: Struct<'_> =
            btf.type_by_name(name).unwrap_or_else(|| panic!("no 'struct {name}' in the object"));
        let fields = record.iter().map(|member| {
            let MemberAttr::Normal { offset: bits } = member.attr else { panic!("'{name}' has bit fields") };
            let field = member.name.expect("a field has a name").to_string_lossy();
            (field.into_owned(), bits as usize / 8)
        });
        Layout { bytes: record.size(), fields: fields.collect() }
    }

    /// Octets before each field.
    ///
    /// # Panics
    /// When there is no such field.
    pub fn places<const N: usize>(&self, fields: [&str; N]) -> [usize; N] {
        fields.map(|field| {
            let found = self.fields.iter().find(|(name, _)| name == field);
            found.unwrap_or_else(|| panic!("no field '{field}' among {:?}", self.fields)).1
        })
    }
}

/// Fails unless a type has the size, and the fields named, all of them, have the order and the places, that
/// `struct name` has in a built object.
macro_rules! assert_mirrors {
    ($object:expr, $name:literal, $type:ty: $($field:ident)*) => {
        let fields = [$((stringify!($field).to_owned(), std::mem::offset_of!($type, $field))),*];
        let ours = $crate::layout::Layout { bytes: size_of::<$type>(), fields: fields.into() };
        assert_eq!($crate::layout::Layout::of($object, $name), ours);
    };
}
pub(crate) use assert_mirrors;
