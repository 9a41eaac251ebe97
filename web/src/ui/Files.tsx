import type { CollectedFile } from "../api/schema";
import { bytes } from "../lib/format";
import { visibleLine } from "../lib/inert";
import { decode, pictureAddress, pictureType } from "../lib/pictures";

/** The files that a run left: pictures to look at, all of them to download. */
export function Files({ files }: { files: CollectedFile[] }) {
  if (files.length === 0) return null;
  return (
    <section aria-labelledby="files-title">
      <h3 id="files-title">Files</h3>
      <ul class="files">
        {files.map((file) => (
          <li key={file.path}>
            <File file={file} />
          </li>
        ))}
      </ul>
    </section>
  );
}

function File({ file }: { file: CollectedFile }) {
  const name = visibleLine(file.path);
  const type = pictureType(file.path, decode(file.content_base64));
  return (
    <figure>
      {type && <img src={pictureAddress(type, file.content_base64)} alt={`Picture ${name}`} />}
      <figcaption>
        <bdi>{name}</bdi> <span class="faint">{bytes(file.size)}</span>{" "}
        <button type="button" class="small" onClick={() => download(file)} aria-label={`Download ${name}`}>
          Download
        </button>
      </figcaption>
    </figure>
  );
}

/** As bytes without a type, so that no browser opens it as a page. */
function download(file: CollectedFile): void {
  const address = URL.createObjectURL(new Blob([decode(file.content_base64)], { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = file.path.split("/").pop()?.replace(/[^\w.\- ]/g, "_") || "file";
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
