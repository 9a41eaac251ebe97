export type Theme = "system" | "light" | "dark";
const STORED = "belljar-theme";
const NEXT: Record<Theme, Theme> = { system: "light", light: "dark", dark: "system" };

export function storedTheme(): Theme {
  const stored = localStorage.getItem(STORED);
  return stored === "light" || stored === "dark" ? stored : "system";
}

export function nextTheme(theme: Theme): Theme {
  return NEXT[theme];
}

export function applyTheme(theme: Theme): void {
  if (theme === "system") {
    localStorage.removeItem(STORED);
    delete document.documentElement.dataset["theme"];
  } else {
    localStorage.setItem(STORED, theme);
    document.documentElement.dataset["theme"] = theme;
  }
}
