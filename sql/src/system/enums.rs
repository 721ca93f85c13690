//! Enums in `pg_type` and `pg_enum`.

use super::tables::{Rows, int, text};
use super::{PUBLIC, SystemCatalog, stored};
use crate::catalog::{Enum, QualifiedName};
use crate::types::EnumId;
use crate::types::datum::Datum;

/// OIDs of the functions that read and write enums, in the order of the columns of `types.txt`.
const ENUM_FUNCTIONS: [u32; 5] = [3_506, 3_507, 3_532, 3_533, 0];
/// OIDs of the functions of their arrays, in the same order.
const ARRAY_FUNCTIONS: [u32; 5] = [750, 751, 2_400, 2_401, 6_179];

impl SystemCatalog {
    /// Returns the enum with an OID, and whether the OID is that of its array type.
    pub(super) fn enum_of(&self, oid: u32) -> Option<(&Enum, bool)> {
        let id = EnumId::new(oid & !1)?;
        self.enums.get(id).map(|one| (&**one, id.oid() != oid))
    }

    pub(super) fn pg_type(&self, mut rows: Rows) -> Rows {
        super::types::add_all(&mut rows);
        for one in self.enums.iter() {
            let Some(id) = EnumId::new(one.oid) else { continue };
            let owner = int(self.role_oid(self.owner(&QualifiedName::public(&one.name))));
            let mut add = |oid: u32, name: &str, functions: [u32; 5], others: &[(&str, Datum)]| {
                let common = [
                    ("oid", int(oid)),
                    ("typname", text(name)),
                    ("typnamespace", int(PUBLIC)),
                    ("typowner", owner.clone()),
                    ("typisdefined", Datum::Bool(true)),
                    ("typdelim", text(",")),
                    ("typinput", int(functions[0])),
                    ("typoutput", int(functions[1])),
                    ("typreceive", int(functions[2])),
                    ("typsend", int(functions[3])),
                    ("typsubscript", int(functions[4])),
                    ("typalign", text("i")),
                    ("typtypmod", int(-1)),
                ];
                rows.add(&[&common[..], others].concat());
            };
            let own = [
                ("typlen", int(4)),
                ("typbyval", Datum::Bool(true)),
                ("typtype", text("e")),
                ("typcategory", text("E")),
                ("typarray", int(id.array_oid())),
                ("typstorage", text("p")),
            ];
            add(id.oid(), &one.name, ENUM_FUNCTIONS, &own);
            let array = [
                ("typlen", int(-1)),
                ("typtype", text("b")),
                ("typcategory", text("A")),
                ("typelem", int(id.oid())),
                ("typstorage", text("x")),
            ];
            add(id.array_oid(), &format!("_{}", one.name), ARRAY_FUNCTIONS, &array);
        }
        rows
    }

    pub(super) fn pg_enum(&self, mut rows: Rows) -> Rows {
        for one in self.enums.iter() {
            for label in &one.labels {
                rows.add(&[
                    ("oid", int(stored(label.id))),
                    ("enumtypid", int(one.oid)),
                    ("enumsortorder", Datum::Float(label.sort_order.into())),
                    ("enumlabel", text(&label.text)),
                ]);
            }
        }
        rows
    }
}
