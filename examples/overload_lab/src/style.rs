//! How plots and the report look, light and dark.

/// Colours, and plots. The report has it once, and each plot that is a file of its own.
pub const STYLE: &str = "\
.lab{--bg:#fff;--fg:#1f2328;--mute:#59636e;--grid:#d8dee4;--band:#eef1f4;--noisy:#e16f24;--q0:#4c93dd;--q1:#79b0e8;\
--none:#cf222e;--tower:#8a6a3b;--fixed:#b35900;--vegas:#087d8a;--codel:#8250df;--wfq:#0969da;--edge:#1a7f37}
@media(prefers-color-scheme:dark){.lab{--bg:#0d1117;--fg:#e6edf3;--mute:#9198a1;--grid:#30363d;--band:#1b222b;--noisy:#d9772b;--q0:#2f6cb3;--q1:#4a8ad2;\
--none:#ff7b72;--tower:#cda869;--fixed:#f0a04b;--vegas:#39c5cf;--codel:#bc8cff;--wfq:#58a6ff;--edge:#3fb950}}
svg.lab{background:var(--bg);font:11px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;max-width:100%;height:auto}
svg.lab text{fill:var(--mute)}
svg.lab .t{fill:var(--fg);font-size:15px;font-weight:600}
svg.lab .p{font-size:12px;font-weight:600;fill:var(--c)}
svg.lab .r{text-anchor:end}
svg.lab .m{text-anchor:middle}
svg.lab .n{font-size:9.5px}
svg.lab .g{stroke:var(--grid);fill:none}
svg.lab .b{fill:var(--band)}
svg.lab .l{stroke:var(--c);fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
svg.lab .i{stroke:var(--mute);fill:none;stroke-width:1;stroke-dasharray:2 3}
svg.lab .d{fill:var(--c);stroke:var(--bg);stroke-width:.7}
svg.lab .a{stroke:var(--bg);stroke-width:.4}
";

/// The report around them.
pub const PAGE: &str = "\
body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.55 system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}
main{max-width:980px;margin:0 auto;padding:2.5rem 1.2rem 5rem}
h1{font-size:2.1rem;line-height:1.2;margin:0 0 .4rem}
h2{font-size:1.45rem;margin:3.6rem 0 .6rem}
p,ul{max-width:46rem}
li{margin:.25rem 0}
.lead{font-size:1.15rem;color:var(--mute)}
code{font:.86em ui-monospace,SFMono-Regular,Menlo,monospace;background:var(--band);padding:.1em .35em;border-radius:4px}
pre{background:var(--band);padding:.8rem 1rem;border-radius:8px;overflow-x:auto;margin:.8rem 0}
pre code{padding:0}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.86rem;margin:.6rem 0 1.2rem;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--mute);padding:.3rem 0}
th,td{padding:.28rem .7rem;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}
th:first-child,td.words{text-align:left}
td.words{white-space:normal}
thead th{color:var(--mute);font-weight:500}
tbody th{font-weight:600;color:var(--c)}
.first{font-size:.95rem}
.first th:first-child{white-space:normal;font-weight:500}
@media(max-width:600px){main{padding:1.4rem .9rem 3rem}h1{font-size:1.7rem}.first{font-size:.8rem}.first th,.first td{padding:.28rem .3rem;white-space:normal}}
.good{color:var(--edge);font-weight:600}
.bad{color:var(--none);font-weight:600}
details{margin:.4rem 0}
summary{cursor:pointer;color:var(--mute)}
svg{display:block;margin:1.2rem 0}
footer{margin-top:4rem;color:var(--mute);font-size:.9rem}
";
