"""What the rows of a memory record are called on the page, in both languages."""

from __future__ import annotations

from floatscope.report.words import Say

TERMS = {
    "formula": Say("formula of the standard block", "标准块的公式"),
    "formula without scores": Say("formula, without scores", "公式，不含分数矩阵"),
    "no dropout": Say("no dropout", "没有 dropout"),
    "SwiGLU": Say("SwiGLU", "SwiGLU"),
    "norms keep more": Say("norms keep more", "归一化多存一些"),
    "residual stream in fp32": Say("residual stream in fp32", "残差流留在 fp32"),
    "one cast a consumer": Say("one cast a consumer", "每个使用者一份转换"),
    "attention": Say("attention", "注意力"),
    "log-sum-exp": Say("log-sum-exp", "log-sum-exp"),
    "last norm and head": Say("last norm and head", "最后的归一化与输出头"),
    "log-softmax": Say("log-softmax", "log-softmax"),
    "casts of weights and tables": Say("casts of weights and tables", "权重与表的转换"),
    "ids and targets": Say("ids and targets", "输入与目标编号"),
}
CATEGORIES = {
    "parameters": "参数", "gradients": "梯度", "first moment": "一阶矩", "second moment": "二阶矩",
    "other optimizer state": "其他优化器状态", "saved activations": "存下的激活",
    "buffers": "缓冲区",
    "logits and loss temporaries": "logits 与损失的临时量", "input": "输入",
    "optimizer temporaries": "优化器临时量", "other temporaries": "其他临时量",
    "16-bit casts": "16 位转换", "master weights": "主参数", "workspace": "工作区",
    "unexplained": "无法解释",
}  # fmt: skip
ATTENTION = {"fused": "融合注意力", "materialized": "显式存下分数的注意力"}
STAGES = {
    "build": "建模型", "forward": "前向", "backward": "反向",
    "first optimizer step": "第一步", "zero_grad": "清零梯度", "second forward": "第二次前向",
    "second backward": "第二次反向",
}  # fmt: skip
REASONS = {
    "no dropout": "没有掩码，也没有丢弃后的分数；公式为 fp32 加倍时把掩码也加倍了",
    "SwiGLU": "前馈宽度的张量有四个，而不是 4h 宽的两个",
    "norms keep more": "CPU 上的 rms_norm 由基本算子组成，用 fp32：归一化后的输入与 1/rms 也存下",
    "residual stream in fp32": "autocast 让归一化的输入留在 fp32；16 位的模型里归一化自己加宽",
    "one cast a consumer": "归一化的输出为 q、k、v 各存一份 16 位副本，为 gate、up 再存两份",
    "attention": "存下融合核的输出，以及给投影用的转置副本",
    "log-sum-exp": "fp32，每个头、每个 token 一个，融合注意力由它重算分数",
    "last norm and head": "在所有块之后，不在每层的公式之内",
    "log-softmax": "损失所用：fp32；模型本身是 16 位时则为 16 位",
    "casts of weights and tables": "矩阵每个元素 2 字节，RoPE 表为 q、k 各一次",
    "ids and targets": "int64；嵌入与损失把它们存下",
}


def reason_of(term: str, reason: str) -> Say:
    """Why a term is there: the record's own words, and the Chinese of a known term."""
    return Say(reason, REASONS.get(term, reason))


def category(name: str) -> Say:
    """A category of the ledger."""
    return Say(name, CATEGORIES.get(name, name))


def stage(name: str) -> Say:
    """The end of a stage."""
    return Say(f"after {name}", f"{STAGES.get(name, name)}后")
