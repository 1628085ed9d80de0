//! A deserializer for which only an object is an object.
//!
//! The code that serde derives takes an array for a struct's fields in order, so `[]` is a request with every default.
//! Go refuses that. This wraps a deserializer and all that comes out of it, so that a struct is read as a map at every
//! level; nothing that is parsed through it can be positional.

use std::fmt;

use serde::de::{DeserializeSeed, EnumAccess, Error, IntoDeserializer, MapAccess, SeqAccess, VariantAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// What becomes of fields that a type does not have, where the type itself says nothing (`deny_unknown_fields`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unknown {
    /// They are passed over.
    Ignored,
    /// They are an error that names them.
    Refused,
}

/// The wrapper.
pub(super) struct Objects<D> {
    inner: D,
    unknown: Unknown,
    /// The field whose value this is; known only where unknown ones are refused.
    field: Option<String>,
}

impl<D> Objects<D> {
    pub(super) fn new(inner: D, unknown: Unknown) -> Self {
        Self { inner, unknown, field: None }
    }
}

macro_rules! forward {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$method(Within { inner: visitor, unknown: self.unknown })
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Objects<D> {
    type Error = D::Error;

    forward! {
        deserialize_any deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_i128 deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
        deserialize_f32 deserialize_f64 deserialize_char deserialize_str deserialize_string deserialize_bytes
        deserialize_byte_buf deserialize_option deserialize_unit deserialize_seq deserialize_map
        deserialize_identifier
    }

    /// What the whole wrapper is for.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.deserialize_map(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        match (self.unknown, &self.field) {
            (Unknown::Refused, Some(field)) => Err(D::Error::custom(format_args!("unknown field `{field}`"))),
            _ => self.inner.deserialize_ignored_any(visitor),
        }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_unit_struct(name, Within { inner: visitor, unknown: self.unknown })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_newtype_struct(name, Within { inner: visitor, unknown: self.unknown })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_tuple(len, Within { inner: visitor, unknown: self.unknown })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_tuple_struct(name, len, Within { inner: visitor, unknown: self.unknown })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_enum(name, variants, Within { inner: visitor, unknown: self.unknown })
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

/// A visitor, a seed or an accessor through which deserializers pass: they come out wrapped.
struct Within<T> {
    inner: T,
    unknown: Unknown,
}

macro_rules! visit {
    ($($method:ident: $type:ty)*) => {$(
        fn $method<E: Error>(self, value: $type) -> Result<V::Value, E> {
            self.inner.$method(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Within<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    visit! {
        visit_bool: bool visit_i8: i8 visit_i16: i16 visit_i32: i32 visit_i64: i64 visit_i128: i128
        visit_u8: u8 visit_u16: u16 visit_u32: u32 visit_u64: u64 visit_u128: u128 visit_f32: f32 visit_f64: f64
        visit_char: char visit_str: &str visit_borrowed_str: &'de str visit_string: String visit_bytes: &[u8]
        visit_borrowed_bytes: &'de [u8] visit_byte_buf: Vec<u8>
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(Objects::new(from, self.unknown))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, from: D) -> Result<V::Value, D::Error> {
        self.inner.visit_newtype_struct(Objects::new(from, self.unknown))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        self.inner.visit_seq(Within { inner: items, unknown: self.unknown })
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(Fields { inner: fields, unknown: self.unknown, field: None })
    }

    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        self.inner.visit_enum(Within { inner: variant, unknown: self.unknown })
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Within<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(Objects::new(from, self.unknown))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Within<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.inner.next_element_seed(Within { inner: seed, unknown: self.unknown })
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

/// The fields of an object.
struct Fields<A> {
    inner: A,
    unknown: Unknown,
    /// The last key read; known only where unknown ones are refused.
    field: Option<String>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Fields<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        if self.unknown == Unknown::Ignored {
            return self.inner.next_key_seed(Within { inner: seed, unknown: self.unknown });
        }
        self.field = self.inner.next_key::<String>()?;
        let Some(field) = &self.field else { return Ok(None) };
        seed.deserialize(field.as_str().into_deserializer()).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.next_value_seed(FieldValue { inner: seed, unknown: self.unknown, field: self.field.take() })
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

/// Reads a field's value, knowing the field.
struct FieldValue<S> {
    inner: S,
    unknown: Unknown,
    field: Option<String>,
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for FieldValue<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(Objects { inner: from, unknown: self.unknown, field: self.field })
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Within<A> {
    type Error = A::Error;
    type Variant = Within<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self::Variant), A::Error> {
        let unknown = self.unknown;
        let (value, variant) = self.inner.variant_seed(Within { inner: seed, unknown })?;
        Ok((value, Within { inner: variant, unknown }))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Within<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.newtype_variant_seed(Within { inner: seed, unknown: self.unknown })
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.inner.tuple_variant(len, Within { inner: visitor, unknown: self.unknown })
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.inner.newtype_variant_seed(AsMap { inner: visitor, unknown: self.unknown })
    }
}

/// Reads the fields of a struct variant, which must be an object too.
struct AsMap<V> {
    inner: V,
    unknown: Unknown,
}

impl<'de, V: Visitor<'de>> DeserializeSeed<'de> for AsMap<V> {
    type Value = V::Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<V::Value, D::Error> {
        Objects::new(from, self.unknown).deserialize_map(self.inner)
    }
}

/// Reads a value in which only objects are objects.
pub(super) fn read<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D, unknown: Unknown) -> Result<T, D::Error> {
    T::deserialize(Objects::new(from, unknown))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Inner {
        a: u64,
        b: String,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    enum Choice {
        Unit,
        Wrapped(Inner),
        Pair(u64, Inner),
        Named { inner: Inner },
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Newtype(Inner);

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Outer {
        plain: Inner,
        maybe: Option<Inner>,
        #[serde(deserialize_with = "crate::json::nullable")]
        null: Inner,
        list: Vec<Inner>,
        map: BTreeMap<String, Inner>,
        newtype: Option<Newtype>,
        choice: Option<Choice>,
        pair: Option<(u64, Inner)>,
        any: serde_json::Value,
    }

    fn parse(text: &str, unknown: Unknown) -> Result<Outer, String> {
        let streamed = read(&mut serde_json::Deserializer::from_str(text), unknown).map_err(|e| e.to_string());
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        let held = read::<Outer, _>(value, unknown).map_err(|e| e.to_string());
        assert_eq!(streamed.is_ok(), held.is_ok(), "{text}: {streamed:?} {held:?}");
        streamed
    }

    #[test]
    fn an_array_is_no_object_at_any_level() {
        for positional in [
            "[]",
            r#"[{"a":1}]"#,
            r#"{"plain":[]}"#,
            r#"{"plain":[1,"x"]}"#,
            r#"{"maybe":[1,"x"]}"#,
            r#"{"null":[]}"#,
            r#"{"list":[[1,"x"]]}"#,
            r#"{"map":{"k":[]}}"#,
            r#"{"newtype":[1,"x"]}"#,
            r#"{"choice":{"Wrapped":[]}}"#,
            r#"{"choice":{"Pair":[1,[]]}}"#,
            r#"{"choice":{"Named":[{}]}}"#,
            r#"{"choice":{"Named":{"inner":[]}}}"#,
            r#"{"pair":[1,[2,"x"]]}"#,
        ] {
            for unknown in [Unknown::Ignored, Unknown::Refused] {
                assert!(parse(positional, unknown).is_err(), "{positional}");
            }
        }
    }

    #[test]
    fn everything_else_is_read_as_before() {
        for text in [
            "{}",
            r#"{"plain":{"a":1,"b":"é\n"},"maybe":null,"null":null,"list":[{},{"a":2}],"map":{"k":{"b":"x"}}}"#,
            r#"{"newtype":{"a":3},"choice":"Unit","pair":[1,{"a":2}],"any":[1,-1,1.5,null,[{"x":[]}]]}"#,
            r#"{"choice":{"Wrapped":{"a":1}}}"#,
            r#"{"choice":{"Pair":[7,{"a":1}]}}"#,
            r#"{"choice":{"Named":{"inner":{"b":"x"}}}}"#,
        ] {
            let plain: Outer = serde_json::from_str(text).unwrap();
            for unknown in [Unknown::Ignored, Unknown::Refused] {
                assert_eq!(parse(text, unknown).as_ref(), Ok(&plain), "{text}");
            }
        }
    }

    #[test]
    fn unknown_fields_are_named_where_they_are_refused() {
        for text in [r#"{"bogus":1}"#, r#"{"plain":{"bogus":[1]}}"#, r#"{"list":[{"a":1,"bogus":null}]}"#] {
            assert!(parse(text, Unknown::Ignored).is_ok(), "{text}");
            let error = parse(text, Unknown::Refused).unwrap_err();
            assert!(error.starts_with("unknown field `bogus`"), "{error}");
        }
        assert!(parse(r#"{"any":{"bogus":1},"map":{"bogus":{}}}"#, Unknown::Refused).is_ok());
    }
}
