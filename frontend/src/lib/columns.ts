/* Rows that the server gives as columns, a list for each field, in pages where there are very many. Pure, but for `readWhole`. */

/** A column of few different words, as the server gives it: the place of each row's word. */
export interface Words {
  words: string[];
  at: (number | null)[];
}

export type Column = unknown[] | Words;
export type Columns = Record<string, Column>;

const isWords = (column: Column): column is Words => !Array.isArray(column);

/** The rows of `second` behind those of `first`. */
export function joined(first: Columns, second: Columns): Columns {
  return Object.fromEntries(Object.entries(first).map(([name, column]) => {
    const more = second[name]!;
    return [name, isWords(column) && isWords(more) ? joinedWords(column, more) : [...(column as unknown[]), ...(more as unknown[])]];
  }));
}

function joinedWords(first: Words, second: Words): Words {
  const words = [...first.words];
  const places = new Map(words.map((word, place) => [word, place]));
  const moved = second.words.map((word) => {
    const place = places.get(word) ?? words.push(word) - 1;
    places.set(word, place);
    return place;
  });
  return { words, at: [...first.at, ...second.at.map((place) => (place === null ? null : moved[place]!))] };
}

interface Page {
  columns: unknown;
  next: string | null;
}

/** The first page with the rows of all that follow it. */
export async function readWhole<P extends Page>(read: (cursor: string | null) => Promise<P>): Promise<P> {
  const first = await read(null);
  let columns = first.columns as Columns;
  for (let next = first.next; next !== null; ) {
    const page = await read(next);
    columns = joined(columns, page.columns as Columns);
    next = page.next;
  }
  return { ...first, columns, next: null };
}
