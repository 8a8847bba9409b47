// Names of layers: what they share, which module each is of, and the rows that a picture has.

/** Return the part that all names begin with, up to a dot; empty for fewer than two names. */
export function sharedPrefix(names) {
  if (names.length < 2) return "";
  let shared = names[0];
  for (const name of names) {
    let length = 0;
    while (length < shared.length && shared[length] === name[length]) length += 1;
    shared = shared.slice(0, length);
    if (!shared) return "";
  }
  return shared.slice(0, shared.lastIndexOf(".") + 1);
}

/** Return the module that a layer is shown under: up to its first number, else its owner. */
export function moduleOf(name) {
  const parts = name.split(".");
  const number = parts.findIndex((part) => /^\d+$/.test(part));
  if (number >= 0 && number < parts.length - 1) return parts.slice(0, number + 1).join(".");
  return parts.length > 1 ? parts.slice(0, -1).join(".") : name;
}

/**
 * Return modules in the order of their first layers.
 *
 * @param {string[]} names
 * @returns {{name: string, layers: number[]}[]} with the indices of the layers
 */
function modulesOf(names) {
  const found = new Map();
  names.forEach((name, index) => {
    const module = moduleOf(name);
    if (!found.has(module)) found.set(module, { name: module, layers: [] });
    found.get(module).layers.push(index);
  });
  return [...found.values()];
}

/**
 * Return the rows of a picture.
 *
 * @param {string[]} names
 * @param {{fold: boolean, open: Set<string>}} how fold: a row for each module, but for open ones
 * @returns {{label: string, module: string, layers: number[], kind: "layer"|"fold"|"head"}[]} a
 *   head is the row of an open module, above those of its layers
 */
export function rowsOf(names, { fold, open }) {
  const prefix = sharedPrefix(names);
  const rows = [];
  for (const { name, layers } of modulesOf(names)) {
    const of = (kind, label, own) => ({ kind, label, module: name, layers: own });
    const isSingle = layers.length === 1;
    if (fold && !isSingle)
      rows.push(of(open.has(name) ? "head" : "fold", name.slice(prefix.length) || name, layers));
    if (fold && !isSingle && !open.has(name)) continue;
    for (const index of layers) {
      const inside =
        fold && !isSingle ? names[index].slice(name.length + 1) : names[index].slice(prefix.length);
      rows.push(of("layer", inside || names[index], [index]));
    }
  }
  return rows;
}

/** Return the layers that an alert names, that in which it began first. */
export function namedLayers(alert) {
  const { first_gradient: first, layer } = alert?.origin ?? {};
  return [...new Set([first, layer, ...(alert?.layers ?? [])])].filter(Boolean);
}
