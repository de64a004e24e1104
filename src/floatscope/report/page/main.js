// The report's one module: everything starts here.

import { startBench } from "./bench.js";
import { startBits } from "./bits.js";
import { startLine } from "./line.js";
import { startLive } from "./live.js";
import { startPredict } from "./predict.js";
import { startSwitches } from "./switches.js";

startSwitches();
startPredict();
startLine();
startBits();
startBench();
startLive();
