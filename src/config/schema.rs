//! Which fields a config has, and how a file is read field by field.
//!
//! A format knows where in a file it is while it reads a value: an error that comes out of the visitor of that value
//! gets its line and column. So each value is checked there. Two fields that contradict each other are found at the
//! second of them, in the order of the format. Only what is wrong with a table as a whole is found at its end: a
//! field that is missing, or one that contradicts the default of a field that is not given.

use std::{collections::BTreeMap, fmt};

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::given::{Given, Value, shortened};
use crate::ConfigError;

/// Whether a value may be that of a field of this name, whatever other fields there are.
pub(super) type Check = fn(&str, &Given) -> Result<(), ConfigError>;

/// What a table may have in it.
pub(super) struct Schema {
    /// What it is called where there is no field that it is the value of.
    pub(super) name: &'static str,
    /// Its own, and those of its parts that stand beside them.
    pub(super) fields: &'static [&'static [Field]],
    pub(super) pairs: &'static [Pair],
    pub(super) check: fn(&Given) -> Result<(), ConfigError>,
}

/// Two fields that can contradict each other, so that no third one can make it right.
pub(super) struct Pair {
    /// Which of the two the error is about, and because of which.
    pub(super) fields: (&'static str, &'static str),
    /// Of a table with these two.
    pub(super) check: fn(&Given) -> Result<(), ConfigError>,
}

pub(super) struct Field {
    name: &'static str,
    kind: Kind,
}

enum Kind {
    Value(Check),
    /// A table of any names, with a value for each.
    Names {
        /// An error is about the table's field.
        name: fn(&str) -> Result<(), ConfigError>,
        value: Check,
    },
    Table(&'static Schema),
}

impl Field {
    /// What makes a `T`.
    pub(super) const fn value<T: Value>(name: &'static str) -> Self {
        Self::checked(name, is_a::<T>)
    }

    pub(super) const fn checked(name: &'static str, check: Check) -> Self {
        let kind = Kind::Value(check);
        Self { name, kind }
    }

    /// A table of names, each with what makes a `T`.
    pub(super) const fn names<T: Value>(
        name: &'static str,
        check: fn(&str) -> Result<(), ConfigError>,
    ) -> Self {
        let kind = Kind::Names {
            name: check,
            value: is_a::<T>,
        };
        Self { name, kind }
    }

    /// A part that is a table of its own.
    pub(super) const fn table(name: &'static str, schema: &'static Schema) -> Self {
        let kind = Kind::Table(schema);
        Self { name, kind }
    }
}

fn is_a<T: Value>(field: &str, given: &Given) -> Result<(), ConfigError> {
    T::read(field, given).map(drop)
}

/// Reads a whole config.
pub(super) fn read_table<'de, D>(schema: &'static Schema, from: D) -> Result<Given, D::Error>
where
    D: Deserializer<'de>,
{
    let kind = Kind::Table(schema);
    Reader::of_all(schema.name, &kind).deserialize(from)
}

/// Reads a value that is no table.
pub(super) fn read_value<'de, T, D>(name: &'static str, from: D) -> Result<T, D::Error>
where
    T: Value,
    D: Deserializer<'de>,
{
    let kind = Kind::Value(is_a::<T>);
    let given = Reader::of_all(name, &kind).deserialize(from)?;
    T::read(name, &given).map_err(D::Error::custom)
}

impl Schema {
    fn all(&self) -> impl Iterator<Item = &'static Field> {
        self.fields.iter().copied().flatten()
    }

    fn field(&self, name: &str) -> Result<&'static Field, ConfigError> {
        self.all().find(|field| field.name == name).ok_or_else(|| {
            let known: Vec<_> = self.all().map(|field| field.name).collect();
            let problem = format!("is not known here; there are {}", known.join(", "));
            ConfigError::that(&shortened(name), problem)
        })
    }

    /// Whether a field contradicts one that was read before it.
    fn clash(&self, table: &BTreeMap<String, Given>, name: &str) -> Result<(), ConfigError> {
        let given = |name| table.get(name).filter(|given| given.is_there());
        for Pair { fields, check } in self.pairs {
            let (wrong, because) = *fields;
            let (true, Some(one), Some(other)) = (
                [wrong, because].contains(&name),
                given(wrong),
                given(because),
            ) else {
                continue;
            };
            let both = [(wrong, one), (because, other)]
                .map(|(name, given)| (name.to_owned(), given.clone()));
            let about_it = |error: &ConfigError| error.field() == wrong;
            if let Some(error) = check(&Given::Table(both.into())).err().filter(about_it) {
                // The whole table may know better what is allowed.
                let all = (self.check)(&Given::Table(table.clone()));
                return Err(all.err().filter(about_it).unwrap_or(error));
            }
        }
        Ok(())
    }
}

/// What a table is part of.
#[derive(Clone, Copy)]
struct Place<'a> {
    outer: Option<&'a Place<'a>>,
    field: &'a str,
}

/// With the names of what it is part of.
fn locate<E: Error>(error: ConfigError, place: Option<&Place<'_>>) -> E {
    match place {
        None => E::custom(error),
        Some(place) => locate(error.within(place.field), place.outer),
    }
}

/// Reads one value, and checks it.
struct Reader<'a> {
    field: &'a str,
    kind: &'a Kind,
    place: Option<&'a Place<'a>>,
    /// Whether it is all there is: then it may not be left out.
    is_all: bool,
    /// What else it has to be.
    fits: &'a dyn Fn(&Given) -> Result<(), ConfigError>,
}

impl<'a> Reader<'a> {
    fn of_all(name: &'static str, kind: &'a Kind) -> Self {
        Self {
            field: name,
            kind,
            place: None,
            is_all: true,
            fits: &|_| Ok(()),
        }
    }

    fn checked<E: Error>(&self, given: Given) -> Result<Given, E> {
        let table_of = |what| Err(ConfigError::new(self.field, what).found(&given));
        let checked = match self.kind {
            _ if !given.is_there() && !self.is_all => Ok(()),
            Kind::Value(check) => check(self.field, &given).and_then(|()| (self.fits)(&given)),
            Kind::Names { .. } => table_of("a table of names"),
            Kind::Table(_) => table_of("a table of fields"),
        };
        match checked {
            Ok(()) => Ok(given),
            Err(error) => Err(locate(error, self.place)),
        }
    }

    /// Of what is in it.
    fn inside(&self) -> Option<Place<'_>> {
        (!self.is_all).then_some(Place {
            outer: self.place,
            field: self.field,
        })
    }

    fn read_fields<'de, A>(&self, schema: &Schema, mut map: A) -> Result<Given, A::Error>
    where
        A: MapAccess<'de>,
    {
        let inside = self.inside();
        let place = inside.as_ref();
        let mut table = BTreeMap::new();
        loop {
            let known = |name: &str| schema.field(name).map(drop);
            let name = Name::new(&known, &table, place, place);
            let Some(name) = map.next_key_seed(name)? else {
                break;
            };
            let field = schema.field(&name).map_err(A::Error::custom)?;
            let given = map.next_value_seed(Reader {
                field: field.name,
                kind: &field.kind,
                place,
                is_all: false,
                fits: &|given| match schema.pairs {
                    [] => Ok(()),
                    _ => {
                        let mut so_far = table.clone();
                        so_far.insert(field.name.to_owned(), given.clone());
                        schema.clash(&so_far, field.name)
                    }
                },
            })?;
            table.insert(name, given);
        }
        let given = Given::Table(table);
        match (schema.check)(&given) {
            Ok(()) => Ok(given),
            Err(error) => Err(locate(error, place)),
        }
    }

    fn read_names<'de, A>(
        &self,
        check: fn(&str) -> Result<(), ConfigError>,
        value: Check,
        mut map: A,
    ) -> Result<Given, A::Error>
    where
        A: MapAccess<'de>,
    {
        let inside = self.inside();
        let place = inside.as_ref();
        let mut table = BTreeMap::new();
        let kind = Kind::Value(value);
        while let Some(name) = map.next_key_seed(Name::new(&check, &table, self.place, place))? {
            let given = map.next_value_seed(Reader {
                field: &shortened(&name),
                kind: &kind,
                place,
                is_all: true, // a name with nothing is no name that is left out
                fits: &|_| Ok(()),
            })?;
            table.insert(name, given);
        }
        Ok(Given::Table(table))
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Given;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Given, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Given;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value, or a table of fields")
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Given, E> {
        self.checked(Given::Flag(flag))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Given, E> {
        self.checked(Given::Whole(number.into()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Given, E> {
        self.checked(Given::Whole(number.into()))
    }

    fn visit_i128<E: Error>(self, number: i128) -> Result<Given, E> {
        self.checked(Given::Whole(number))
    }

    fn visit_u128<E: Error>(self, number: u128) -> Result<Given, E> {
        let number = i128::try_from(number).unwrap_or(i128::MAX); // too much for any field
        self.checked(Given::Whole(number))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Given, E> {
        self.checked(Given::Number(number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Given, E> {
        self.checked(Given::Text(text.to_owned()))
    }

    fn visit_unit<E: Error>(self) -> Result<Given, E> {
        self.checked(Given::Nothing)
    }

    fn visit_none<E: Error>(self) -> Result<Given, E> {
        self.checked(Given::Nothing)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Given, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<Given, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Given, A::Error> {
        let given = self.checked(Given::List)?;
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(given)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Given, A::Error> {
        match self.kind {
            Kind::Table(schema) => self.read_fields(schema, map),
            Kind::Names { name, value } => self.read_names(*name, *value, map),
            Kind::Value(_) => {
                let given = self.checked(Given::Table(BTreeMap::new()))?;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(given)
            }
        }
    }
}

/// Reads the name of a field, and checks it.
struct Name<'a> {
    check: &'a dyn Fn(&str) -> Result<(), ConfigError>,
    /// What the error of that check is part of.
    checked_in: Option<&'a Place<'a>>,
    before: &'a BTreeMap<String, Given>,
    place: Option<&'a Place<'a>>,
}

impl<'a> Name<'a> {
    fn new(
        check: &'a dyn Fn(&str) -> Result<(), ConfigError>,
        before: &'a BTreeMap<String, Given>,
        checked_in: Option<&'a Place<'a>>,
        place: Option<&'a Place<'a>>,
    ) -> Self {
        Self {
            check,
            checked_in,
            before,
            place,
        }
    }
}

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<String, E> {
        (self.check)(name).map_err(|error| locate(error, self.checked_in))?;
        if self.before.contains_key(name) {
            let error = ConfigError::that(&shortened(name), "is given twice");
            return Err(locate(error, self.place));
        }
        Ok(name.to_owned())
    }
}
