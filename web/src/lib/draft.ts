// The code survives a reload of the page, in this tab alone.
const STORED = "belljar-draft";

export interface Draft {
  language: string;
  code: string;
}

export function storedDraft(): Draft | null {
  try {
    const draft = JSON.parse(sessionStorage.getItem(STORED) ?? "null") as Draft | null;
    return draft && typeof draft.code === "string" && typeof draft.language === "string" ? draft : null;
  } catch {
    return null;
  }
}

export function storeDraft(draft: Draft): void {
  try {
    sessionStorage.setItem(STORED, JSON.stringify(draft));
  } catch {
    // A draft that is too large for the browser's store is only lost on a reload.
  }
}

export function dropDraft(): void {
  sessionStorage.removeItem(STORED);
}
