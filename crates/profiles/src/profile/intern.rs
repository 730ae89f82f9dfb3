//! Stores equal values once, numbered in order of appearance.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use foldhash::fast::RandomState;

#[derive(Debug)]
pub(crate) struct Interned<T: ?Sized> {
    items: Vec<Arc<T>>,
    numbers: HashMap<Arc<T>, u32, RandomState>,
}

impl<T: ?Sized> Default for Interned<T> {
    fn default() -> Self {
        Interned { items: Vec::new(), numbers: HashMap::default() }
    }
}

impl<T: ?Sized> Clone for Interned<T> {
    fn clone(&self) -> Self {
        Interned { items: self.items.clone(), numbers: self.numbers.clone() }
    }
}

impl<T: ?Sized + Eq + Hash> Interned<T> {
    pub(crate) fn intern(&mut self, item: Arc<T>) -> u32 {
        let next = self.items.len() as u32;
        let items = &mut self.items;
        *self.numbers.entry(item).or_insert_with_key(|item| {
            items.push(Arc::clone(item));
            next
        })
    }

    pub(crate) fn find(&self, item: &T) -> Option<u32> {
        self.numbers.get(item).copied()
    }

    /// Doesn't allocate if the item is already known.
    pub(crate) fn intern_ref<'a>(&mut self, item: &'a T) -> u32
    where
        Arc<T>: From<&'a T>,
    {
        match self.find(item) {
            Some(number) => number,
            None => self.intern(Arc::from(item)),
        }
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.items.get(number as usize).map(|i| &**i)
    }

    pub(crate) fn at(&self, number: u32) -> &T {
        &self.items[number as usize]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter().map(|i| &**i)
    }
}
