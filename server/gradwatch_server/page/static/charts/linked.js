// The step under the cursor, in all charts and pictures of the page at once.

const followers = new Set();
let isTelling = false;

/**
 * Follow the cursors of others.
 *
 * @param {(step: number|null) => void} take null when there is no cursor any more
 * @returns {() => void} ends it
 */
export function followSteps(take) {
  followers.add(take);
  return () => followers.delete(take);
}

/** Tell all others where one's own cursor is; who follows does not tell it on. */
export function tellStep(step, own) {
  if (isTelling) return;
  isTelling = true;
  try {
    for (const take of followers) if (take !== own) take(step);
  } finally {
    isTelling = false;
  }
}
