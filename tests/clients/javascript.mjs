// Asks a server through the JavaScript SDK: one request a line in, one answer a line out.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [folder, endpoint] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${folder}/package.json`));
const sdk = require("@aws-sdk/client-sqs");
const credentials = { accessKeyId: "any", secretAccessKey: "any", sessionToken: process.env.TOKEN };
const client = new sdk.SQSClient({ endpoint, credentials, region: "us-east-1", maxAttempts: 1 });

for await (const line of createInterface({ input: process.stdin })) {
  const [action, input] = JSON.parse(line);
  let told;
  try {
    const { $metadata, ...answer } = await client.send(new sdk[`${action}Command`](input));
    told = { answer };
  } catch (error) {
    told = { error: `${error.name}: ${error.message}` };
  }
  console.log(JSON.stringify(told));
}
