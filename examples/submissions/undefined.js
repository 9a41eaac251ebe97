const input = require("fs").readFileSync(0, "utf8");
console.log(input.numbers.length);
