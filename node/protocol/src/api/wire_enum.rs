//! Enums that are words in JSON, refused with Go's wording when the word is unknown.

/// Defines an enum with its words. `aliases` are read, never written.
macro_rules! wire_enum {
    (
        $(#[$doc:meta])* $name:ident, unknown = $unknown:path;
        $($(#[$variant_doc:meta])* $variant:ident = $word:literal $(| $alias:literal)*;)+
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            /// The word in JSON.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                match String::deserialize(deserializer)?.as_str() {
                    $($word $(| $alias)* => Ok(Self::$variant),)+
                    other => Err(serde::de::Error::custom($unknown(other))),
                }
            }
        }
    };
}

pub(crate) use wire_enum;

/// How Go reports an unknown word of most enums: the JSON text, quoted once more.
pub(crate) fn can_not_unmarshal(word: &str) -> String {
    format!("can not unmarshal {:?}", format!("{word:?}"))
}
