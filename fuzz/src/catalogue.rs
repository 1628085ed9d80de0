//! The catalogue: entries of the meta group's log, applied, and the image.

use headwater_core::catalog::{Catalog, CatalogEntry};
use headwater_core::ids::LogIndex;

use crate::input::{Input, put_number, put_part};
use crate::sample;

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut log = vec![0];
    let mut seeds = Vec::new();
    for (index, entry) in (1..).zip(sample::catalogue_entries()) {
        put_number(&mut log, index);
        put_part(&mut log, &entry.encode());
        seeds.push([&[2][..], &entry.encode()].concat());
    }
    let image = sample::catalogue().image();
    seeds.push([&[1][..], &image].concat());
    seeds.push(log);
    seeds
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.u8() % 3 {
        0 => {
            let mut catalog = Catalog::default();
            while !input.is_empty() {
                let index = LogIndex::new(input.number());
                entry(&mut catalog, index, input.part());
            }
            image(&catalog.image());
        }
        1 => image(input.rest()),
        _ => entry(&mut sample::catalogue(), LogIndex::new(14), input.rest()),
    }
}

fn entry(catalog: &mut Catalog, index: LogIndex, bytes: &[u8]) {
    let Ok(entry) = CatalogEntry::decode(bytes) else { return };
    let again = CatalogEntry::decode(&entry.encode()).expect("what was written can be read");
    assert_eq!(again, entry);
    let mut other = catalog.clone();
    assert_eq!(format!("{:?}", other.apply(index, &entry)), format!("{:?}", catalog.apply(index, &entry)));
    assert_eq!(other, *catalog, "replicas agree");
}

fn image(bytes: &[u8]) {
    let Ok(catalog) = Catalog::from_image(bytes) else { return };
    let again = Catalog::from_image(&catalog.image()).expect("what was written can be read");
    assert_eq!(again, catalog);
    let mut applied = catalog;
    for (index, entry) in (applied.applied().get().saturating_add(1)..).zip(sample::catalogue_entries()) {
        applied.apply(LogIndex::new(index), &entry);
    }
}
