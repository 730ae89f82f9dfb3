//! Finds out which number in the headers of NMT's blocks stands for which category of its report. The numbers differ
//! between JDKs. The sums of the blocks found equal the sums in the report, so they identify the categories.

use plimsoll_facts::snapshot::{NmtCategory, TaggedBlocks};
use plimsoll_facts::units::Bytes;

/// Blocks come and go between the report and the walk.
const TOLERANCE_PERCENT: u64 = 5;
const TOLERANCE: u64 = 4096;
/// Chunks of the VM's arenas. The report counts most of them under the categories that use them (`arena=`).
const CHUNKS: &str = "Arena Chunk";

/// Bytes of the blocks with the category's tag, by the report.
fn stated(category: &NmtCategory, in_arenas: Bytes) -> Bytes {
    if category.name == CHUNKS { category.malloc + in_arenas } else { category.malloc }
}

/// Sets `malloc_resident` of each category whose blocks were found; the largest first.
pub fn match_tags(categories: &mut [NmtCategory], tagged: &[TaggedBlocks]) {
    let in_arenas: Bytes = categories.iter().map(|category| category.arena).sum();
    let in_chunks = categories.iter().find(|category| category.name == CHUNKS).map(|of| stated(of, in_arenas));
    let in_chunks = in_chunks.unwrap_or_default();
    let mut order: Vec<usize> = (0..categories.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(stated(&categories[*index], in_arenas)));
    let mut free: Vec<&TaggedBlocks> = tagged.iter().collect();
    let mut chunks: Option<TaggedBlocks> = None;
    let mut matched: Vec<Option<TaggedBlocks>> = vec![None; categories.len()];
    let mut take = |index: usize, near: &dyn Fn(&TaggedBlocks) -> Option<u64>| {
        let best = (0..free.len()).filter_map(|at| Some((near(free[at])?, at))).min();
        if let Some((_, at)) = best {
            let blocks = *free.swap_remove(at);
            matched[index] = Some(blocks);
            if categories[index].name == CHUNKS {
                chunks = Some(blocks);
            }
        }
        best.is_some()
    };
    let within = |difference: u64, of: u64, least: u64| difference <= (of / 100 * TOLERANCE_PERCENT).max(least);
    order.retain(|index| {
        let bytes = stated(&categories[*index], in_arenas);
        let near = |sum: &TaggedBlocks| {
            let difference = sum.bytes.abs_diff(bytes).0;
            within(difference, bytes.0, TOLERANCE).then_some(difference)
        };
        bytes > Bytes(0) && !take(*index, &near)
    });
    // The report includes memory that the VM used for its answer and freed since (the attach request's buffer of 1 MiB
    // is in Internal). Then the number of blocks identifies the category.
    for index in order {
        let count = categories[index].malloc_count;
        take(index, &|sum: &TaggedBlocks| {
            let difference = sum.count.abs_diff(count);
            (sum.bytes <= stated(&categories[index], in_arenas) && within(difference, count, 2)).then_some(difference)
        });
    }
    let around: Bytes = matched.iter().flatten().map(|blocks| blocks.around).sum();
    for (category, blocks) in categories.iter_mut().zip(matched) {
        category.around = Some(around).filter(|_| category.headers > Bytes(0) && !tagged.is_empty());
        // The walk is closer to the reading of the mappings than the report is, so the report only divides the chunks.
        let share = |part: Bytes, all: Bytes, of: Option<TaggedBlocks>| match of {
            Some(blocks) => Some((blocks.resident.scaled(part.0, all.0), blocks.moved.scaled(part.0, all.0))),
            None if part == Bytes(0) => Some(Default::default()),
            None => None,
        };
        let malloc = share(category.malloc, stated(category, in_arenas), blocks);
        let arena = share(category.arena, in_chunks, chunks);
        if let (Some(malloc), Some(arena)) = (malloc, arena) {
            category.malloc_resident = Some(malloc.0 + arena.0);
            category.moved = malloc.1 + arena.1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn category(name: &str, malloc: u64, arena: u64) -> NmtCategory {
        NmtCategory { name: name.into(), malloc: Bytes(malloc), arena: Bytes(arena), ..NmtCategory::default() }
    }

    #[test]
    fn sums_identify_the_tags() {
        let mut categories = [
            category("Other", 16_777_216, 0),
            category("GC", 5_223_793, 0),
            category("Compiler", 0, 100_000),
            category("Arena Chunk", 20_000, 0),
            category("Java Heap", 0, 0),
            category("Module", 900_000, 0),
        ];
        let blocks = |tag, bytes, resident| TaggedBlocks {
            tag,
            count: 1,
            bytes: Bytes(bytes),
            resident: Bytes(resident),
            around: Bytes(resident / 100),
            moved: Bytes(resident / 10),
        };
        let tagged = [blocks(9, 5_223_000, 1_000_000), blocks(7, 16_777_216, 16_777_216), blocks(3, 120_000, 60_000)];
        match_tags(&mut categories, &tagged);
        let resident: Vec<Option<u64>> =
            categories.iter().map(|category| category.malloc_resident.map(|bytes| bytes.0)).collect();
        assert_eq!(resident, [Some(16_777_216), Some(1_000_000), Some(50_000), Some(10_000), Some(0), None]);
        let moved: Vec<u64> = categories.iter().map(|category| category.moved.0).collect();
        assert_eq!(moved, [1_677_721, 100_000, 5_000, 1_000, 0, 0]);
        // Only of blocks whose category is known.
        assert!(categories.iter().all(|category| category.around.is_none()));
        categories[5].headers = Bytes(1);
        match_tags(&mut categories, &[&tagged[..], &[blocks(60, 2_000_000, 1 << 30)]].concat());
        assert_eq!(categories[5].around, Some(Bytes(10_000 + 167_772 + 600)));
        categories[5].around = None;
        match_tags(&mut categories, &[]);
        assert_eq!(categories[5].around, None);
    }
}
