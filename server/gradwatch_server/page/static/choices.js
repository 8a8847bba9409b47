// What a person chose, kept for later visits from this device; a browser may keep nothing.

/** Return what was kept under a name; null if nothing was. */
export function recall(name) {
  try {
    return localStorage.getItem(`gradwatch.${name}`);
  } catch {
    return null;
  }
}

/** Keep a text under a name. */
export function keep(name, text) {
  try {
    localStorage.setItem(`gradwatch.${name}`, text);
  } catch {
    // it holds until the page is closed
  }
}
