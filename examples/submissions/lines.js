const lines = [];
require("readline")
  .createInterface({ input: process.stdin })
  .on("line", (line) => lines.push(line))
  .on("close", () => {
    let sum = 0n;
    for (const word of lines.slice(1).join(" ").split(" ").filter(Boolean)) sum += BigInt(word);
    console.log(sum.toString());
  });
