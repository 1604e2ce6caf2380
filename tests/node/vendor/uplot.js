// Charts of time series.
export { default } from "uplot";
