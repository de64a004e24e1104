// The page of the two instruments alone.

import { startBench } from "./bench.js";
import { startBits } from "./bits.js";
import { startSwitches } from "./switches.js";

startSwitches();
startBits();
startBench();
