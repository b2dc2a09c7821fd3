"""Step 1: count the words of a rhyme."""

from clew import Count, Pipeline, files, sqlite

pipeline = Pipeline("word_count")

lines = pipeline.source("lines", files("data/rhyme.jsonl", rows_per_event=5))


def words(line: dict[str, str]) -> list[dict[str, str]]:
    return [{"word": word.strip(",.").lower()} for word in line["text"].split()]


counts = lines.flat_map(words, deterministic=True).window(Count(4)).aggregate("word", times="count", name="counts")
counts.sink(sqlite("words.db", table="counts"))
