import { useEffect, useRef } from "preact/hooks";

const GENERAL: Array<[string, string]> = [
  ["Ctrl ⏎", "Run the program"],
  ["Ctrl .", "Cancel the run"],
  ["t", "Change between dark, light and the system's colours"],
  ["/", "Go to the search field or the filter of the page"],
  ["?", "Show this help"],
  ["Esc, then Tab", "Leave the editor; Tab alone indents"],
];

interface Props {
  open: boolean;
  pages: Array<{ key: string; title: string }>;
  onClose: () => void;
}

export function Help({ open, pages, onClose }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (open) dialog.current?.showModal();
    else dialog.current?.close();
  }, [open]);
  const keys: Array<[string, string]> = [...GENERAL, ...pages.map(({ key, title }): [string, string] => [`g ${key}`, title])];
  return (
    <dialog ref={dialog} onClose={onClose} aria-labelledby="help-title">
      <h2 id="help-title">Keys</h2>
      <dl class="keys">
        {keys.map(([key, meaning]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{meaning}</dd>
          </div>
        ))}
      </dl>
      <button type="button" onClick={onClose}>
        Close
      </button>
    </dialog>
  );
}
